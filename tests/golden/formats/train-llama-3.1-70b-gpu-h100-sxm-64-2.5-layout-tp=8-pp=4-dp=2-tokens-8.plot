llama-3.1-70b on 64 × NVIDIA H100 SXM, tp=8 pp=4 dp=2
megatron, 32 micro-batches of 1 × 8,192 tokens, recompute none, adamw

Memory of the fullest GPU of each stage
memory
       │
96 GiB ┤====================
       │====================
80 GiB ┤══════════════════════════════════════════════════════════════════════════════════
       │=========================================
64 GiB ┤=========================================
       │=============================================================
       │=============================================================
48 GiB ┤░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░
       │░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░
32 GiB ┤▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒
       │▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒
       │▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒
16 GiB ┤▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒
       │▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓
     0 ┤██████████████████████████████████████████████████████████████████████████████████
       └──────────┬───────────────────┬────────────────────┬───────────────────┬──────────
                  0                   1                    2                   3
                                                                                     stage
█  parameters
▓  gradients
▒  optimizer
░  saved activations
#  buffers
+  logits
=  in flight (pipeline)
═  usable memory: 78.65 GiB

Pipeline schedule: 1f1b
0  FFFF····BBFBFBBFBFBBFBFBBFBFBBFBFBBFBFBBFBFBB·BFBB·BFBB·BFBB·BFBB·BFBB·BFBB·BFBB·B·BB·B
1  ·FFF···BFBBFBFBBFBFBBFBFBBFBFBBFBFBBFBFBB·BFBB·BFBB·BFBB·BFBB·BFBB·BFBB·BFBB·BFBB·B·BB·
2  ··FF·BBFBFBBFBFBBFBFBBFBFBBFBFBBFBFBBFBFBBFBFBB·BFBB·BFBB·BFBB·BFBB·BFBB·BFBB·BFBB·B···
3  ···FBFBBFBFBBFBFBBFBFBBFBFBBFBFBBFBFBBFBFBBFBFBBFBFBBFBFBBFBFBBBBFBBBBFBBBBFBBBBFBB····
time: 9.06 s; F forward, B backward
