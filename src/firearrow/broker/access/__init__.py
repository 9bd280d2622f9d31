"""Access control: users, policies, the decision about each request."""
