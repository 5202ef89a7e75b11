"""The paper's figures and claims, and the speed benchmarks."""
