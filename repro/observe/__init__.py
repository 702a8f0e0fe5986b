"""Running trials inside a cell and writing down what happened: facts only, no judgement (cell tier)."""
