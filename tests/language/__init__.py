"""The sentences of the language, each as the smallest program that shows it, compiled and run."""
