"""The page of `jspec trace`: a generation round by round, in one file."""
