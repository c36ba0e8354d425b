//! Finds of the random sequences, each as a small test of its own.
