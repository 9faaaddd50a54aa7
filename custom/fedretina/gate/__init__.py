"""What stands before every answer: is this an image that the site's model may answer at all?"""
