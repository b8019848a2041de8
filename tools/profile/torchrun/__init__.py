"""torchrun as pliant starts it: arguments, environment, processes, last words."""
