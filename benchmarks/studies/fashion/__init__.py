"""Fashion-MNIST by ten LeNets: one model, and ensembles with and without priors and bootstrap."""
