"""Operations that stock torch spends more time starting than computing, compiled on the machine that runs them."""
