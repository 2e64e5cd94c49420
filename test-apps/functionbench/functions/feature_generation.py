"""Features of n reviews: cleaned, and weighed by TF-IDF."""
import os
import re

import pandas
from sklearn.feature_extraction.text import TfidfVectorizer

PARAMETERS = {"n": (1000, 10, 4000)}
INPUTS = os.environ.get("INPUTS", "/function/inputs")
NOT_LETTERS = re.compile("[^a-zA-Z]")
reviews = None


def setup():
    global reviews
    reviews = pandas.read_csv(os.path.join(INPUTS, "reviews.tsv"), sep="\t", names=["good", "text"])


def handle(parameters):
    texts = reviews["text"].head(parameters["n"]).apply(lambda text: NOT_LETTERS.sub(" ", text).lower())
    vectorizer = TfidfVectorizer(min_df=2).fit(texts)
    weights = vectorizer.transform(texts)
    return [list(weights.shape), int(weights.nnz), float(weights.sum()), list(vectorizer.get_feature_names_out())]
