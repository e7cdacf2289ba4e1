module slipway.dev/devcluster/simulator

go 1.26.0

require github.com/llm-d/llm-d-inference-sim v0.10.2
