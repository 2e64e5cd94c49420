"""A logistic regression that tells praise from blame, trained on n reviews."""
import os

import pandas
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LogisticRegression

PARAMETERS = {"n": (2000, 100, 4000)}
INPUTS = os.environ.get("INPUTS", "/function/inputs")
reviews = None


def setup():
    global reviews
    reviews = pandas.read_csv(os.path.join(INPUTS, "reviews.tsv"), sep="\t", names=["good", "text"])


def handle(parameters):
    some = reviews.head(parameters["n"])
    features = TfidfVectorizer(min_df=2).fit_transform(some["text"].str.lower())
    model = LogisticRegression().fit(features, some["good"])
    # Where training stops depends on the last digits of floating point.
    return [list(features.shape), [round(float(c), 2) for c in model.coef_[0]]]
