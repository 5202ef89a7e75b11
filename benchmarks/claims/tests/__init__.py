"""The statistical tests behind claims."""
