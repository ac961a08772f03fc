"""State of the balancers between steps."""
