"""Where graphs come from: data sets, networkx, generators; what they are prepared with; and how they are sampled."""
