"""The sections of the page as data: each module folds the run into what one section shows."""
