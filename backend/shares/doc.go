package shares
