bert-base on 1 × NVIDIA L4, one GPU
1 sequence of 512 tokens; weights fp32, cache bf16 in pages of 16 tokens; reserve 10 %

Memory of the fullest GPU
memory
28 GiB ┤1                                                                         2  ▒▒▒▒▒
       │┊                                                                         ┊  ▒▒▒▒▒
       │┊                                                                         ┊ ▒▒▒▒▒▒
24 GiB ┤┊═════════════════════════════════════════════════════════════════════════┊═══════
       │┊                                                                         ┊▒▒▒▒▒▒▒
20 GiB ┤┊                                                                        ▒┊▒▒▒▒▒▒▒
       │┊                                                                       ▒▒┊▒▒▒▒▒▒▒
16 GiB ┤┊                                                                     ▒▒▒▒┊▒▒▒▒▒▒▒
       │┊                                                                    ▒▒▒▒▒┊▒▒▒▒▒▒▒
12 GiB ┤┊                                                                  ▒▒▒▒▒▒▒┊▒▒▒▒▒▒▒
       │┊                                                                ▒▒▒▒▒▒▒▒▒┊▒▒▒▒▒▒▒
 8 GiB ┤┊                                                             ▒▒▒▒▒▒▒▒▒▒▒▒┊▒▒▒▒▒▒▒
       │┊                                                         ▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒┊▒▒▒▒▒▒▒
 4 GiB ┤┊                                                  ▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒┊▒▒▒▒▒▒▒
       │┊                       ▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒┊▒▒▒▒▒▒▒
     0 ┤┊░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░┊░░░░░░░
       └───────┬─────────────┬─────────────┬─────────────┬─────────────┬─────────────┬────
              1k            4k            16k           64k          256k           1M
                                                        context of every sequence (tokens)
█  weights
░  reserve and engine
▒  activations
▓  cache
═  usable memory: 22.03 GiB
1  context: 512
2  longest that fits: 754,164

Roofline: memory bandwidth 300 GB/s
FLOP/s per GPU, predicted
      │                                                             ⢀⣀⠤⠤d⠒⠒⠒⠒⠒⠒⠒⠒⠒⠒⠒⠒⠒⠒⠒⠒d
      │                                                       ⣀⡠⠤⠒⠒⠉⠁             b
 10 T ┤                                                ⣀⣀⠤⠔⠒⠉⠉
      │                                         ⢀⣀⠤⠤⠒⠊⠉
      │                                  ⢀⣀⡠⠤⠒⠊⠉⠁
      │                            ⣀⡠⠤⠔⠒⠉⠁
  1 T ┤                     ⣀⣀⠤⠔⠒⠊⠉
      │              ⢀⣀⠤⠤⠒⠊⠉
      │        ⣀⡠⠤⠒⠒⠉⠁
100 B ┤ ⣀⣀⠤⠔⠒⠉⠉
      │d
      │
      │
 10 B ┤
      │
      │       c
      └───────────────┬────────────────────────┬───────────────────────┬──────────────────
                      1                       10                      100
                                                       FLOPs per byte of weights and cache
a  attention, a pass over 512
b  feed-forward, a pass over 512
c  other, a pass over 512
d  roof: 31.3 TFLOP/s in fp32
