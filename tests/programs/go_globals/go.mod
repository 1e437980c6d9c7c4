module globals

go 1.20
