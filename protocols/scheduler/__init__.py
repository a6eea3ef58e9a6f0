"""What only the scheduler does: negotiate changes, plan, lead a fence, hand its role over."""
