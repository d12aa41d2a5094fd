gpt2 on 1 × NVIDIA GeForce RTX 4090, one GPU
fsdp2, 64 micro-batches of 16 × 1,024 tokens, recompute none, sgd

Memory of the fullest GPU
memory
parameters                bytes  █ 474.7 MiB
gradients                 bytes  █ 474.7 MiB
saved activations         bytes  █████████ 4.559 GiB
logits                    bytes  ███████████████████ 9.202 GiB
allocated                 bytes  ██████████████████████████████ 14.69 GiB
usable memory of the GPU  bytes  ███████████████████████████████████████████████ 23.02 GiB

Speed of the fastest layouts
tokens/s per GPU
one GPU, micro-batch 16, fsdp2     tokens/s per GPU  ███████████████████████████ 79.5 K
one GPU, micro-batch 8, fsdp2      tokens/s per GPU  ███████████████████████████ 78.8 K
one GPU, micro-batch 4, fsdp2      tokens/s per GPU  ██████████████████████████ 77.3 K
one GPU, micro-batch 2, fsdp2      tokens/s per GPU  █████████████████████████ 74.5 K
one GPU, micro-batch 32, megatron  tokens/s per GPU  █████████████████████████ 73.9 K
one GPU, micro-batch 16, megatron  tokens/s per GPU  █████████████████████████ 73.6 K
