"""The corpora of profile `real`, from their publishers: what `make data` downloads, checks and converts.

`origins.yaml` says where each corpus is, under which licence, and what its rows were when we measured.
No text of a corpus is in this repository. The other files of this folder hold facts about them: SNIPS' slots
as questions (`snips.yaml`), and which rows were taken (`articles.txt`: numbers of SumPubMed's articles;
`paragraphs.txt` and `sentences.txt`: `fingerprint`s of SQuAD's questions and Tatoeba's pairs, in our order).
"""
