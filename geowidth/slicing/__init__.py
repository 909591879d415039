"""A pretrained model, as narrow as each layer allows: which FFN neurons stay, how many a layer, what is corrected."""
