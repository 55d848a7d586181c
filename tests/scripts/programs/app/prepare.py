def piece(number):
    import data

    x, y = data.load()
    half = len(x) // 2
    return x[number * half:(number + 1) * half], y[number * half:(number + 1) * half]
