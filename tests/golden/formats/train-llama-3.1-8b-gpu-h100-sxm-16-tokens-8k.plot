llama-3.1-8b on 16 × NVIDIA H100 SXM, tp=2 sp=2 dp=8
megatron, 8 micro-batches of 2 × 8,192 tokens, recompute none, adamw

Memory of the fullest GPU
memory
parameters                bytes  ████ 7.479 GiB
gradients                 bytes  █████████ 14.96 GiB
optimizer                 bytes  ███ 5.609 GiB
saved activations         bytes  ████████████████████ 34.16 GiB
buffers                   bytes  ▏ 741 MiB
logits                    bytes  ████ 5.871 GiB
allocated                 bytes  █████████████████████████████████████████ 68.80 GiB
usable memory of the GPU  bytes  ███████████████████████████████████████████████ 78.65 GiB

Speed of the fastest layouts
tokens/s per GPU
tp=2 sp=2 dp=8, micro-batch 2, mega…  tokens/s per GPU  ████████████████████████ 10.4 K
pp=2 vpp=4 dp=8, micro-batch 1, meg…  tokens/s per GPU  ████████████████████████ 10.3 K
tp=2 sp=2 dp=8, micro-batch 1, mega…  tokens/s per GPU  ████████████████████████ 10.3 K
pp=2 vpp=2 dp=8, micro-batch 1, meg…  tokens/s per GPU  ████████████████████████ 10.2 K
pp=2 fsdp=8, micro-batch 1, fsdp2     tokens/s per GPU  ███████████████████████ 10.1 K
pp=2 dp=8, micro-batch 1, megatron    tokens/s per GPU  ███████████████████████ 9.94 K
