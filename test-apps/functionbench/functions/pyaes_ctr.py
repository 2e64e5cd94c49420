"""A message of `length` bytes, encrypted n times with AES in pure Python, and decrypted again."""
import pyaes

PARAMETERS = {"n": (5, 1, 10_000), "length": (2_000, 1, 1_000_000)}
KEY = bytes(range(32))


def handle(parameters):
    message = bytes(i * 7 % 251 for i in range(parameters["length"]))
    for _ in range(parameters["n"]):
        secret = pyaes.AESModeOfOperationCTR(KEY).encrypt(message)
        if pyaes.AESModeOfOperationCTR(KEY).decrypt(secret) != message:
            raise ArithmeticError("decryption does not give the message")
    return secret
