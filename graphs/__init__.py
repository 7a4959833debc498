"""Where graphs come from: generators, data sets, preprocessing."""
