"""The figures and conclusions of the notebooks: a module a chapter, or a folder with a module a subject.

`..._figure` draws a table; its message, the title above it, is computed from that table. `..._conclusion`
says in two or three sentences what it shows, with the numbers of the profile on the page. Both take tables
alone, so that they can be drawn again from what is stored.
"""
