module called

go 1.19
