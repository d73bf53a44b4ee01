CREATE STREAMING TABLE revenue
COMMENT 'Revenue by ten minutes and country, once no order can change it any more'
AS SELECT
  window(o.event_time, '10 minutes').start AS window_start,
  o.country,
  count(*) AS orders,
  sum(o.amount_cents) AS revenue_cents
FROM STREAM orders WATERMARK o.event_time DELAY OF INTERVAL 10 MINUTES AS o
GROUP BY window(o.event_time, '10 minutes'), o.country
