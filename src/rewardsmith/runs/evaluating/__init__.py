"""`rewardsmith evaluate`: the data, the reward and its models, and what is printed."""
