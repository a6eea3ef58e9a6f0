"""What only the scheduler does: it negotiates changes, plans, leads fences, hands its role over."""
