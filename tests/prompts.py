"""Twenty requests for the runs on the real checkpoint."""

PROMPTS = (
    "What is the capital of France?", "Name three primary colours.", "Write a haiku about the sea.",
    "Explain gravity to a child.", "What is 12 times 9?", "Translate 'good morning' into Spanish.",
    "Who wrote Romeo and Juliet?", "List the planets of the solar system.", "Why is the sky blue?",
    "Give me a recipe for pancakes.", "What does a compiler do?", "Tell me a joke about cats.",
    "How do vaccines work?", "What is photosynthesis?", "Describe a rainy day in two sentences.",
    "Which is larger, the Moon or Mars?", "What is the boiling point of water?", "Write a limerick about a robot.",
    "How many days are in a leap year?", "Summarise the story of Cinderella.",
)  # fmt: skip
