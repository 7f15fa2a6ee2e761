"""Faithfulness: how well the scores of a method predict what the model does without its tokens."""
