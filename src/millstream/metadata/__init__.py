"""What the cluster agrees on: the store behind it, and the image that every broker keeps of it."""
