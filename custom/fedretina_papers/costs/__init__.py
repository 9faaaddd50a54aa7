"""What a method costs: weights, arithmetic, bytes, memory, time and energy."""
