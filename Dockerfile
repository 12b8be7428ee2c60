# docker build -t early-exit . && docker run early-exit
FROM python:3.11-slim
RUN apt-get update && apt-get install --yes --no-install-recommends git make && rm -rf /var/lib/apt/lists/*
WORKDIR /early-exit
COPY . .
RUN make setup
CMD ["./reproduce.sh"]
