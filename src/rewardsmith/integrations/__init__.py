"""Other systems use our rewards: a reward server and its client."""
