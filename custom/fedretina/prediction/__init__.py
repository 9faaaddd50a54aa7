"""A site's model at work on a folder of photographs: answers, patients, and the list that a doctor works through."""
