"""`slipway plan`: pods and GPUs for models with their demand, from a file. Pure: no cluster, no file, no terminal."""
