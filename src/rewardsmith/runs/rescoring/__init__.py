"""`rewardsmith score`: stored rollouts, scored again by another reward, and what that would have changed."""
