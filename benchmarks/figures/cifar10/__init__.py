"""Figures on CIFAR10."""
