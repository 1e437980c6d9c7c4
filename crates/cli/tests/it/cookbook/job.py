import sys
import time


def price(n):
    return n * 3


def order(n):
    return sum(price(i) for i in range(n))


end = time.time() + float(sys.argv[1])
while time.time() < end:
    order(5)
    time.sleep(0.002)
