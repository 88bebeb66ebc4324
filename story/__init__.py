"""The story that lockd ends, acted out in a real container: run 1 good, twelve acts, the answer, the way back."""
