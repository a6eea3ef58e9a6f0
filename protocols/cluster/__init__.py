"""What members agree on, and how a cluster comes to be: views, policies, terms, histories."""
