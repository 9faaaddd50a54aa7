"""The check of a site's data before it joins: what it finds, from rows to pixels, and its report."""
