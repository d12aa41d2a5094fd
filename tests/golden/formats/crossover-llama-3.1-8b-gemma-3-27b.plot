Attention against the feed-forward
forward FLOPs of a prefill by its length; 2 FLOPs per multiply-add; all logits

llama-3.1-8b
FLOPs per token
      │                                                                               ⢀⡠⠤⠒
  1 T ┤                                                                         ⢀⣀⠤⠔⠒⠉⢁⡠⠤⠒
      │                                                                   ⢀a⠤⠔⠒⠉⢁⣀⠤⠔⠒⠉⠁
      │                                                              ⣀⡠⠤⠒⠉⢁⣀b⠔⠒⠉⠁
100 B ┤                                                        ⣀⡠⠤⠒⠊⠉⣀⡠⠤⠒⠉⠁
      │                                                  ⢀⡠⠤⠒⠊⠉⣀⡠⠤⠒⠊⠉
      │⣀⣀⣀⣀⣀⣀⣀⣀⣀⣀⣀⣀⣀⣀d⣀⣀⣀⣀⣀⣀⣀⣀⣀⣀⣀⣀⣀⣀⣀⣀⣀⣀⣀⣀⣀⣀⣀⣀⣀⣀⣀⣀⣀3⣀d⣔⣊⣉4⣠⣤⣒⣊⣉⣀⣀⣀⣀⣀⣀⣀⣀⣀⣀⣀⣀d⣀⣀⣀⣀⣀⣀⣀⣀⣀⣀⣀⣀⣀⣀
 10 B ┤⠉⠉⠉⠉⠉⠉⠉⠉⠉⠉⠉⠉⠉⠉⠉⠉⠉c⠉⠉⠉⠉⠉⠉⠉⠉⠉⠉⠉⠉⠉⠉⠉⠉⠉⠉⠉⠉⢉⣉⠭⠝⠛1bc⠭⠝2⠉⠉⠉⠉⠉⠉⠉⠉⠉⠉⠉⠉⠉⠉⠉⠉⠉⠉⠉⠉⠉⠉c⠉⠉⠉⠉⠉⠉⠉⠉⠉⠉⠉
      │                                 ⣀⡠⠤⠒⠉⢁⣀⠤⠔⠒⠉⠁
      │                           ⣀⡠⠤⠒⠊⠉⣀⡠⠤⠒⠉⠁
  1 B ┤                     ⢀⡠⠤⠒⠊⠉⣀⡠⠤⠒⠊⠉
      │               ⢀⣀⠤⠔⠒⠉⢁⡠⠤⠒⠊⠉
      │         ⢀⣀⠤⠔⠒a⢁b⠤⠔⠒⠉⠁
100 M ┤    ⣀⡠⠤⠒⠉⢁⣀⠤⠔⠒⠉⠁
      │⠤⠒⠊⠉⣀⡠⠤⠒⠉⠁
      │⠤⠒⠊⠉
      └──────┬──────────┬───────────┬──────────┬───────────┬──────────┬───────────┬───────
            256        1k          4k         16k         64k       256k         1M
                                                                         length T (tokens)
a  scores + values, dense
b  scores + values, masked
c  feed-forward
d  every linear layer but the head
1  21,504: scores + values ≥ feed-forward, dense
2  43,007: scores + values ≥ feed-forward, masked
3  26,624: scores + values ≥ every linear layer, dense
4  53,247: scores + values ≥ every linear layer, masked

gemma-3-27b
FLOPs per token
      │                                                                               ⢀⡠⠤⠒
      │                                                                         ⢀⣀⠤⠔⠒⠉⠁
  1 T ┤                                                                   ⢀⣀a⠔⠒⠉⠁
      │                                                              ⣀⡠⠤⠒⠉⠁
      │                                                        ⣀⡠⠤⠒⠊⠉                ⣀⡠⠔⠒⠉
100 B ┤                                                  ⢀⡠⠤⠒⠊⠉               ⣀⠤⠤⠤⠒⠊⠉
      │⠛⠛⠛⠛⠛⠛⠛⠛⠛⠛⠛⠛⠛⠛d⠛⠛c⠛⠛⠛⠛⠛⠛⠛⠛⠛⠛⠛⠛⠛⠛⠛⠛⠛⠛⠛⠛⠛⠛⠛⠛⠛⠛⢛d⠿⠟1⠛3⠛⠛⠛⠛⠛⠛⠛⠛⠛⠛⠛⠛⠛⠛⣛⠿⠟⠛2⠛4⠛⠛⠛⠛⠛⠛⠛⠛⠛⠛⠛
      │                                      ⢀⣀⠤⠔⠒⠉⠁              ⣀⡠⠤⠒⠊⠉
 10 B ┤                                 ⣀⡠⠤⠒⠉⠁              ⣀⡠⠤⠒⠊⠉
      │                           ⣀⡠⠤⠒⠊⠉             b⡠⠤⠔⠊⠉⠉
      │                     ⢀⡠⠤⠒⠊⠉         ⣀⣀⡠⠤⠤⠔⠒⠉⠉⠉
  1 B ┤               ⢀⣀⠤⠔⠒⠉⠁⢀⣀⣀⡠⠤⠤⠤⠤⠒⠒⠒⠉⠉⠉
      │         ⢀⣀⠤⠔⠒a⢁b⠤⠔⠒⠉⠉⠁
      │    ⣀⡠⠤⠒⠉⢁⣀⠤⠔⠒⠉⠁
100 M ┤⠤⠒⠊⠉⣀⡠⠤⠒⠉⠁
      │⠤⠒⠊⠉
      └──────┬──────────┬───────────┬──────────┬───────────┬──────────┬───────────┬───────
            256        1k          4k         16k         64k       256k         1M
                                                                         length T (tokens)
a  scores + values, dense
b  scores + values, masked
c  feed-forward
d  every linear layer but the head
1  42,336: scores + values ≥ feed-forward, dense
2  514,327: scores + values ≥ feed-forward, masked
3  50,400: scores + values ≥ every linear layer, dense
4  614,319: scores + values ≥ every linear layer, masked
