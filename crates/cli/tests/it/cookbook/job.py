import sys
import time


def price(n):
    return n * 3


def order(n):
    return sum(price(i) for i in range(n))


orders = []
end = time.time() + float(sys.argv[1])
while time.time() < end:
    total = order(5)
    orders += [[total] for n in range(20)]
    time.sleep(0.002)
