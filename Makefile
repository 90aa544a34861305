# Every target makes what it needs and can be run again.

.PHONY: up test check test-vllm bench full clean

up: ## Serve: a gateway on http://127.0.0.1:8000 with the sim engine behind it (ARGS="--port 8001 …")
	@scripts/install
	@.venv/bin/nnrp-gateway up $(ARGS)

test: ## The whole ordinary suite: no GPU, no model, no network
	@scripts/install test
	@scripts/test $(ARGS)

check: ## Format, lint, types, layers, spelling
	@scripts/install test check
	@scripts/check

test-vllm: ## Real vLLM on the CPU, in an environment of its own (.venv-vllm)
	@scripts/test-vllm $(ARGS)

bench: ## The benchmarks of benchmarks/, one table each
	@scripts/install test
	@scripts/bench $(ARGS)

full: check test test-vllm bench ## Everything, the benchmarks too

clean: ## Remove what the other targets made
	rm -rf .venv .venv-vllm .models .mypy_cache .ruff_cache .pytest_cache .hypothesis artifacts
