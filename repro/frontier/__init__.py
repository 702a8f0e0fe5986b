"""Between which releases something appears and disappears: searched for in few cells, proved by neighbours."""
