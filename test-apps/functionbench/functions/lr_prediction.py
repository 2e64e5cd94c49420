"""n reviews judged by a logistic regression that was trained before."""
import os

import pandas
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LogisticRegression

PARAMETERS = {"n": (500, 1, 2000)}
INPUTS = os.environ.get("INPUTS", "/function/inputs")
TRAINED_ON = 2000
model = vectorizer = texts = None


def setup():
    global model, vectorizer, texts
    reviews = pandas.read_csv(os.path.join(INPUTS, "reviews.tsv"), sep="\t", names=["good", "text"])
    lower, known = reviews["text"].str.lower(), reviews.head(TRAINED_ON)
    vectorizer = TfidfVectorizer(min_df=2).fit(lower.head(TRAINED_ON))
    model = LogisticRegression().fit(vectorizer.transform(lower.head(TRAINED_ON)), known["good"])
    texts = lower.tail(len(reviews) - TRAINED_ON)


def handle(parameters):
    return [int(good) for good in model.predict(vectorizer.transform(texts.head(parameters["n"])))]
